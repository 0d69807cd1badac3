//! What is asked of a bootstrap server, and what has to be answered.
//!
//! | module | what stands there |
//! |---|---|
//! | [`dialect`] | in-tree vLLM's own requests, and what is wrong with a registration |
//! | [`order`] | who gives way to whom |
//! | [`sizes`] | tables that are not complete |
//! | [`life`] | who is forgotten |
//! | [`access`] | tokens, bounds, and the names that a server has |
//! | [`hostile`] | clients that mean harm |

pub mod access;
pub mod dialect;
pub mod hostile;
pub mod life;
pub mod order;
pub mod sizes;

/// A test of each case for the servers that `$start` starts.
#[macro_export]
macro_rules! bootstrap_cases {
    ($start:expr) => {
        $crate::bootstrap_cases!($start; dialect:
            an_in_tree_deployment_registers_and_is_found
            a_repeat_is_accepted_and_other_fields_are_ignored
            what_is_no_registration_is_refused_with_what_is_wrong_in_it
            what_is_not_there_is_an_error_in_json
            one_connection_may_carry_several_requests
        );
        $crate::bootstrap_cases!($start; order:
            a_worker_that_starts_again_has_its_rank_back_once_the_old_one_is_gone
            an_engine_that_starts_again_replaces_the_old_one_as_a_whole
            a_worker_whose_port_does_not_answer_is_gone_in_bounded_time
            a_newer_incarnation_replaces_a_living_older_one_which_never_returns
            of_many_who_want_the_rank_of_a_dead_worker_one_gets_it
        );
        $crate::bootstrap_cases!($start; sizes:
            a_table_is_told_when_every_rank_is_there_in_whatever_order_they_come
            a_partial_table_without_sizes_is_told_as_in_tree_servers_do
            sizes_that_contradict_each_other_are_refused_with_both
        );
        $crate::bootstrap_cases!($start; life:
            a_worker_is_forgotten_when_its_lease_is_over
            a_worker_without_a_lease_is_forgotten_when_nothing_is_at_its_address
        );
        $crate::bootstrap_cases!($start; access:
            only_who_shows_the_token_registers_and_everybody_may_ask
            a_server_is_reached_by_every_name_that_it_has
            a_full_table_refuses_more_and_serves_those_it_has
        );
        $crate::bootstrap_cases!($start; hostile:
            garbage_is_answered_or_dropped_and_harms_nobody
            bodies_are_bounded_in_length_depth_and_time
            connections_that_are_only_held_make_room_for_others
            heads_that_never_end_are_cut_off
        );
    };
    ($start:expr; $module:ident: $($case:ident)*) => {
        $(
            #[test]
            fn $case() {
                $crate::bootstrap::cases::$module::$case(&$start);
            }
        )*
    };
}
