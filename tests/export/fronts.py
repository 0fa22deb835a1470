"""What may stand between a client and a server: proxies, TLS, faults."""

import concurrent.futures
import contextlib
import dataclasses
import datetime
import http.server
import ipaddress
import pathlib
import socket
import ssl
import threading

import grpc
import requests
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from export import messages


@dataclasses.dataclass
class Front:
    """A server that a test asks.

    `seen` is what it was asked: `(method, path, headers, body)` over REST, the
    metadata over gRPC; `connections` is over how many (REST).
    """

    url: str = ""
    seen: list = dataclasses.field(default_factory=list)
    connections: int = 0


@contextlib.contextmanager
def rest_front(server, refusals=(), answer=None, port=0, prefix="", tls=None):
    """Passes requests on to a `LocalServer`.

    The HTTP statuses in `refusals` are answered first; `answer` maps status,
    headers and content of the server to what is answered. `prefix` is the path
    before `/v1`.
    """
    front = Front()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self):
            super().setup()
            front.connections += 1

        def answer(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            front.seen.append((self.command, self.path, self.headers, body))
            if refusals:
                response = (refusals.pop(0), {}, b'{"error": "not now"}')
            else:
                assert self.path.startswith(f"{prefix}/v1/")
                encoding = self.headers.get("Content-Encoding")
                passed = requests.request(
                    self.command,
                    server.rest_url + self.path.removeprefix(prefix),
                    data=body,
                    headers={"Content-Encoding": encoding},
                    timeout=30,
                )
                response = (passed.status_code, {}, passed.content)
            status, headers, content = answer(*response) if answer else response
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = answer

        def log_message(self, *_):
            pass

    class Server(http.server.ThreadingHTTPServer):
        def handle_error(self, *_):  # clients go away
            pass

    with Server(("127.0.0.1", port), Handler) as opened:
        if tls:
            opened.socket = tls.wrap_socket(opened.socket, server_side=True)
        front.url = (
            f"http{'s' if tls else ''}://127.0.0.1:{opened.server_port}{prefix}"
        )
        thread = threading.Thread(target=opened.serve_forever, args=[0.02])
        thread.start()
        try:
            yield front
        finally:
            opened.shutdown()
            thread.join()


@contextlib.contextmanager
def grpc_front(
    server, refusals=(), answer=None, port=0, tls=None, message="not now"
):
    """Passes requests on to a `LocalServer`, as `rest_front`.

    `refusals` are names of statuses, with the `message`; `answer` maps the
    server's message to what is answered.
    """
    services = messages.prediction_service_pb2_grpc
    front = Front()

    def passed_on(method):
        def call(self, request, context):
            front.seen.append(dict(context.invocation_metadata()))
            if refusals:
                context.abort(grpc.StatusCode[refusals.pop(0)], message)
            response = getattr(stub, method)(request)
            return answer(response) if answer else response

        return call

    class Service(services.PredictionServiceServicer):
        GetModelMetadata = passed_on("GetModelMetadata")
        Predict = passed_on("Predict")

    address = server.grpc_url.removeprefix("grpc://")
    with (
        grpc.insecure_channel(address) as channel,
        concurrent.futures.ThreadPoolExecutor(2) as executor,
    ):
        stub = services.PredictionServiceStub(channel)
        opened = grpc.server(executor)
        services.add_PredictionServiceServicer_to_server(Service(), opened)
        name = f"127.0.0.1:{port}"
        if tls:
            port = opened.add_secure_port(name, tls)
        else:
            port = opened.add_insecure_port(name)
        front.url = f"grpc{'s' if tls else ''}://127.0.0.1:{port}"
        opened.start()
        try:
            yield front
        finally:
            opened.stop(None).wait()


FRONTS = {"grpc": grpc_front, "http": rest_front}


@contextlib.contextmanager
def raw_front(serve):
    """A server of one connection, `serve(socket)`; gives its port."""

    def accept():
        connection, _ = listening.accept()
        with connection, contextlib.suppress(OSError):
            serve(connection)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=accept)
        thread.start()
        yield listening.getsockname()[1]
        thread.join()


@contextlib.contextmanager
def counting_front(url):
    """Passes bytes on; gives its URL and a list of how many came in."""
    scheme, _, address = url.partition("://")
    host, _, port = address.partition(":")
    counts = []

    def pass_on(source, target, counts):
        with contextlib.suppress(OSError):
            while content := source.recv(2**16):
                counts.append(len(content))
                target.sendall(content)
            target.shutdown(socket.SHUT_WR)

    def serve(connection):
        with socket.create_connection((host, port)) as server:
            back = threading.Thread(
                target=pass_on, args=[server, connection, []]
            )
            back.start()
            pass_on(connection, server, counts)
            back.join()

    with raw_front(serve) as listening:
        yield f"{scheme}://127.0.0.1:{listening}", counts


@dataclasses.dataclass(frozen=True)
class Certificates:
    """PEM files: an authority, what it signed, and another authority."""

    ca: pathlib.Path
    other_ca: pathlib.Path
    server: pathlib.Path
    server_key: pathlib.Path
    client: pathlib.Path
    client_key: pathlib.Path

    def http(self, mutual=False):
        """Returns the `ssl.SSLContext` of an HTTPS server."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.server, self.server_key)
        if mutual:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self.ca)
        return context

    def grpc(self, mutual=False):
        """Returns the credentials of a gRPC server."""
        pair = (self.server_key.read_bytes(), self.server.read_bytes())
        return grpc.ssl_server_credentials(
            [pair], self.ca.read_bytes() if mutual else None, mutual
        )


def make_certificates(folder):
    """Writes `Certificates` that are valid for an hour."""
    now = datetime.datetime.now(datetime.UTC)
    hour = datetime.timedelta(hours=1)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    identifier = x509.SubjectKeyIdentifier
    authority = x509.AuthorityKeyIdentifier

    def sign(name, issuer=None):
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name(
            [x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]
        )
        issuer_name, issuer_key = issuer or (subject, key)
        signs = issuer is None
        usage = (True, *[False] * 4, signs, signs, False, False)
        certificate = (
            x509.CertificateBuilder(issuer_name, subject, key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - hour)
            .not_valid_after(now + hour)
            .add_extension(x509.SubjectAlternativeName([address]), False)
            .add_extension(x509.BasicConstraints(signs, None), True)
            # From Python 3.13 on, ssl requires these by default.
            .add_extension(x509.KeyUsage(*usage), True)
            .add_extension(identifier.from_public_key(key.public_key()), False)
            .add_extension(
                authority.from_issuer_public_key(issuer_key.public_key()), False
            )
            .sign(issuer_key, hashes.SHA256())
        )
        pem = serialization.Encoding.PEM
        private = key.private_bytes(
            pem,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        files = folder / f"{name}.pem", folder / f"{name}.key"
        files[0].write_bytes(certificate.public_bytes(pem))
        files[1].write_bytes(private)
        return files, (subject, key)

    (ca, _), issuer = sign("ca")
    (other_ca, _), _ = sign("other")
    server, _ = sign("server", issuer)
    client, _ = sign("client", issuer)
    return Certificates(ca, other_ca, *server, *client)
