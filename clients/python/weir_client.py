"""A small client of weir's control API by gRPC (docs/api.md).

Every call of the description is a method, with the fields of its request by name:

    from weir_client import Client, Refused

    weir = Client("/run/weir/weir.sock")
    status = weir.GetStatus()
    weir.DrainBackend(service="web", backend="b1", drain=True, expect=status.change)
    for told in weir.Watch(interval=2):
        print(told)

Messages and calls are made of the .proto by `clients/python/generate`; nothing here names one.
"""

import grpc
from weir.v1 import weir_pb2, weir_pb2_grpc

# A status of thousands of backends is larger than what gRPC takes if nothing is said.
OPTIONS = [("grpc.max_receive_message_length", -1)]
SERVICE = weir_pb2.DESCRIPTOR.services_by_name["Balancer"]


class Refused(Exception):
    """A call that was refused, or that failed: `kind` as in JSON (none if weir was not reached), gRPC's
    `code`, and `words` for a person."""

    def __init__(self, error):
        metadata = dict(error.trailing_metadata() or ())
        self.kind = metadata.get("weir-kind")
        self.code = error.code()
        self.words = error.details()
        super().__init__(f"{self.words} ({self.kind or self.code.name.lower()})")


class Client:
    """A balancer, at its Unix socket; or, with `tls`, where `[api] listen` says."""

    def __init__(self, socket="/run/weir/weir.sock", *, channel=None, timeout=60):
        # Some would send the socket's path as the name of a host, which is none.
        options = [*OPTIONS, ("grpc.default_authority", "localhost")]
        self._channel = channel or grpc.insecure_channel(f"unix:{socket}", options)
        self._timeout = timeout
        stub = weir_pb2_grpc.BalancerStub(self._channel)
        for method in SERVICE.methods:
            made = self._method(getattr(stub, method.name), method)
            setattr(self, method.name, made)

    @classmethod
    def tls(cls, address, ca, certificate, key, timeout=60):
        """By mutual TLS: `address` is host:port, the others are files in PEM."""
        read = lambda path: open(path, "rb").read()
        credentials = grpc.ssl_channel_credentials(read(ca), read(key), read(certificate))
        return cls(channel=grpc.secure_channel(address, credentials, OPTIONS), timeout=timeout)

    def _method(self, call, method):
        message = getattr(weir_pb2, method.input_type.name)

        def once(**fields):
            try:
                return call(message(**fields), timeout=self._timeout)
            except grpc.RpcError as error:
                raise Refused(error) from None

        def stream(**fields):
            answers = call(message(**fields))
            try:
                yield from answers
            except grpc.RpcError as error:
                raise Refused(error) from None
            finally:
                answers.cancel()

        # Whether it answers in a stream is not told by every version's descriptor; the stub knows.
        return stream if isinstance(call, grpc.UnaryStreamMultiCallable) else once

    def close(self):
        self._channel.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
