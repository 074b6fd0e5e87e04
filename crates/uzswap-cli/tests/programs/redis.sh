# A server that saves in the background (it forks) while it is written to; prints digests of what it
# has, of what it reads back, and of what was saved. The saving child waits at each key, and is
# there for all of `second`: the server copies the same pages in each run, and has the same peak.
# Arguments: a folder with `first` and `second`, commands for the server; requests of redis-benchmark.
set -eu
cd "$1"
cli() { redis-cli -s socket "$@"; }
start() {
    redis-server --port 0 --unixsocket socket --save '' --dir . --enable-debug-command yes \
        "$@" >>server.log 2>&1 &
    server=$!
    tries=0
    until [ "$(cli ping 2>&1)" = PONG ]; do
        tries=$((tries + 1))
        [ "$tries" -lt 600 ] || { cat server.log; exit 1; }
        sleep 0.05
    done
}
stop() {
    cli shutdown nosave
    wait "$server"
}
idle() { until cli info persistence | grep -q 'rdb_bgsave_in_progress:0'; do sleep 0.05; done; }

rm -f dump.rdb saved.rdb server.log
start
cli --pipe <first | tail -1
echo "first $(cli debug digest)"
cli config set rdb-key-save-delay 100 >/dev/null
cli bgsave
cli --pipe <second | tail -1
redis-benchmark -s socket -n "$2" -r 1000 -c 8 -q -t set,get,incr,lpush,lrange_100 --dbnum 1 >bench
cli config set rdb-key-save-delay 0 >/dev/null
idle
cli info persistence | grep rdb_last_bgsave_status
mv dump.rdb saved.rdb
cli -n 1 flushdb
echo "second $(cli debug digest)"
cli debug reload
echo "reloaded $(cli debug digest)"
stop
start --dbfilename saved.rdb
echo "saved $(cli debug digest)"
stop
