#!/bin/sh
# Makes an authority for this machine only, and what it signs: a pair for localhost and a client's pair.
#
#   certs/development.sh            into the folder of this script
#   certs/development.sh DIRECTORY  into that folder
#
# The authority's key is thrown away at once, so that nobody can sign anything else by it; run the script again for new
# files. Whoever trusts authority.pem trusts these pairs and nothing more. Needs the openssl command.
set -eu

directory=${1:-$(dirname "$0")}
days=30
mkdir -p "$directory"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
umask 077

key() {
    openssl ecparam -name prime256v1 -genkey -noout | openssl pkcs8 -topk8 -nocrypt -out "$1"
}

# sign NAME SUBJECT EXTENSIONS…
sign() {
    name=$1 subject=$2
    shift 2
    key "$directory/$name-key.pem"
    openssl req -new -key "$directory/$name-key.pem" -subj "$subject" -out "$work/request.pem"
    printf '%s\n' "basicConstraints = critical, CA:false" "keyUsage = critical, digitalSignature" "$@" >"$work/extensions"
    openssl x509 -req -in "$work/request.pem" -CA "$directory/authority.pem" -CAkey "$work/authority-key.pem" \
        -CAserial "$work/serial" -CAcreateserial -days "$days" -sha256 -extfile "$work/extensions" \
        -out "$directory/$name.pem" 2>/dev/null
}

key "$work/authority-key.pem"
cat >"$work/authority" <<'CONF'
[req]
distinguished_name = name
x509_extensions = authority
prompt = no
[name]
CN = Gangway development authority
[authority]
basicConstraints = critical, CA:true, pathlen:0
keyUsage = critical, keyCertSign, cRLSign
CONF
openssl req -x509 -new -key "$work/authority-key.pem" -config "$work/authority" -days "$days" -sha256 \
    -out "$directory/authority.pem"
sign server /CN=localhost "subjectAltName = DNS:localhost, IP:127.0.0.1, IP:::1" "extendedKeyUsage = serverAuth"
sign client "/CN=developer" "extendedKeyUsage = clientAuth"
chmod 644 "$directory/authority.pem" "$directory/server.pem" "$directory/client.pem"

cat <<EOF
In $directory, for $days days:
  authority.pem                  what clients trust, and listen.tls.client_ca
  server.pem, server-key.pem     listen.tls.certificates
  client.pem, client-key.pem     a client's, for client_auth

  curl --cacert $directory/authority.pem https://localhost:8080/…
  NODE_EXTRA_CA_CERTS=$directory/authority.pem  for clients in Node
EOF
