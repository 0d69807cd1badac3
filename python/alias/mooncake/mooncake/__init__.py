"""The name `mooncake`, for programs that cannot be changed: everything in it is kvferry's."""

from kvferry.compat._alias import refuse_beside

refuse_beside("kvferry-as-mooncake", "mooncake-transfer-engine")
