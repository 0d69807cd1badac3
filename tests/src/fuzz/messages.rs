//! Messages of the control path, and tickets.

use kvferry_engine::RemoteGrant;
use kvferry_proto::message::{
    LayoutDescription, NAME_BYTES, RegionDescription, TICKET_SPANS, TableUpdate, Ticket, TicketSpan,
};
use kvferry_proto::rpc;
use prost::Message as _;

/// A piece of an owner's table.
///
/// # Panics
/// Where a rule is broken.
pub fn table_update(bytes: &[u8]) {
    let Ok(wire) = rpc::TableUpdate::decode(bytes) else { return };
    let Ok(update) = TableUpdate::try_from(wire) else { return };
    for region in &update.regions {
        assert!(region.length > 0 && region.base.checked_add(region.length).is_some());
    }
    for layout in &update.layouts {
        assert!(layout.name.len() <= NAME_BYTES);
        assert!(layout.geometry.block_bytes > 0 && layout.geometry.count > 0);
        assert!(layout.geometry.end().is_some());
    }
    let names: usize = update.layouts.iter().map(|layout| layout.name.capacity()).sum();
    let gone: usize = update.gone_layouts.iter().map(String::capacity).sum();
    let held = update.regions.capacity() * size_of::<RegionDescription>()
        + update.layouts.capacity() * size_of::<LayoutDescription>()
        + update.gone_layouts.capacity() * size_of::<String>();
    super::assert_bounded(held + names + gone, bytes.len());
    // Fields that nobody knows are dropped, so that only a second round has to be the same.
    let again = rpc::TableUpdate::from(&update).encode_to_vec();
    let twice = rpc::TableUpdate::decode(&*again).expect("what is encoded can be decoded");
    assert_eq!(TableUpdate::try_from(twice).expect("it was accepted before"), update);
}

/// A grant on its way to its peer.
///
/// # Panics
/// Where a rule is broken.
pub fn ticket(bytes: &[u8]) {
    let decoded = Ticket::decode(bytes);
    let grant = RemoteGrant::from_ticket(bytes);
    assert_eq!(decoded.is_ok(), grant.is_ok());
    let Ok(ticket) = decoded else { return };
    assert!(ticket.spans.len() <= TICKET_SPANS);
    assert!(ticket.owner.0 != 0 && ticket.grant.0 != 0);
    for span in &ticket.spans {
        assert!(span.length > 0 && span.offset.checked_add(span.length).is_some());
    }
    super::assert_bounded(ticket.spans.capacity() * size_of::<TicketSpan>(), bytes.len());
    assert_eq!(Ticket::decode(&ticket.encode()).as_ref(), Ok(&ticket));
}
