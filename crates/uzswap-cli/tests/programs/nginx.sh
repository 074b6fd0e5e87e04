# A web server with a hundred workers, asked for each of its files many times.
# Arguments: an empty folder, and how often.
set -e
cd "$1"
mkdir files
for number in 0 1 2 3 4 5 6 7 8 9; do
    seq "${number}1000" 13 "${number}99999" >files/"$number"
done
user=
[ "$(id -u)" != 0 ] || user="user root;"
cat >nginx.conf <<END
$user
worker_processes 100;
daemon off;
pid pid;
error_log stderr crit;
events { worker_connections 64; }
http {
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    gzip on;
    gzip_types application/octet-stream;
    server { listen unix:socket; root files; }
}
END
nginx -e stderr -p . -c nginx.conf &
server=$!
while ! curl -s -o /dev/null --unix-socket socket http://server/0; do sleep 0.05; done
for _ in $(seq "$2"); do
    curl -s --compressed --unix-socket socket "http://server/[0-9]"
done | cksum
kill -QUIT "$server"
wait "$server"
