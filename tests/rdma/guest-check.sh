# Pings between the two ends of the first rail, over verbs.
set -eu
rdma link
timeout 30 ibv_rc_pingpong -d rxe_b0 -g 1 -n 200 >/dev/null &
sleep 1
timeout 30 ibv_rc_pingpong -d rxe_a0 -g 1 -n 200 127.0.0.1
wait
