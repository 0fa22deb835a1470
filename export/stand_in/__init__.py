"""A stand-in for `tensorflow_model_server`, where that is not installed.

It speaks the model server's gRPC and REST predict calls and runs the model
through the same C++ loader. States, status codes and results are those of the
TensorFlow Serving 2.20.0 sources that each file names; of an error's text, the
phrase that tells it from others. `tests/contract` holds them, and can ask a
model server the same. What is different on purpose:

- It says in its log and in every answer that it is a stand-in, and listens on
  one address only, by default that of this machine alone.
- There are no Classify, Regress, MultiInference, SessionRun and
  HandleReloadConfigRequest (UNIMPLEMENTED), batching, metrics, request logging,
  TLS and signatures' default inputs.
- A base path that is missing at start is an error at once; the model server
  waits for it, as both do for the first version in an empty one.
- A version that is tried again holds up no other, as in a model server with
  `--num_load_threads`. A retry waits for the next look for versions.
- A request has limits (`core.Limits`), beyond which it gets RESOURCE_EXHAUSTED
  or 413, a header 256 KiB (431). The model server has none, but takes a zipped
  body beyond 100 MiB for an empty one. Memory is given back.
- Of more than 1000 REST connections the one that is idle longest is closed. In
  both a client that sends nothing for 50 seconds is cut off, and one that sends
  a little at a time stays, without a thread.
- Transfer-Encoding and Content-Length in one request are refused (400).
- JSON nested deeper than Python's recursion limit is refused, by which a model
  server dies (tensorflow/serving 4116); so are bytes that are no UTF-8. An
  array has at most 64 axes. A decimal number of more than 15 digits is rounded
  to the nearest double, in the model server sometimes to one beside it.
- Texts for what is not HTTP are those of waitress, not libevent's. The error of
  a version number over 64 bits has a text over REST.
"""

BINARY = "tensorflow_model_server"
EVERY_INTERFACE = "0.0.0.0"
