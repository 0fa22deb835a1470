"""A stand-in for `tensorflow_model_server`, where that is not installed.

It answers the model server's gRPC and REST predict calls and runs the model
through the same C++ loader. States, status codes, results and the telling
phrase of each error are those of the TensorFlow Serving 2.20.0 sources that
each file names. `tests/contract` checks them, also against a model server.
Deliberate differences:

- Its log and every answer say that it is a stand-in. It listens on one address
  only, by default 127.0.0.1.
- It lacks Classify, Regress, MultiInference, SessionRun and
  HandleReloadConfigRequest (UNIMPLEMENTED), batching, metrics, request logging,
  TLS and signatures' default inputs.
- A base path that is missing at start is an error at once; the model server
  waits for it. Both wait for the first version in an empty base path.
- A version that is tried again does not delay others, as in a model server with
  `--num_load_threads`. A retry waits for the next look for versions.
- Requests have limits (`core.Limits`): RESOURCE_EXHAUSTED, or 413; headers
  256 KiB (431). The model server has none, but reads a zipped body of more than
  100 MiB as empty. The stand-in returns freed memory to the system.
- It takes 10,000 REST connections. Both cut off a client that sends nothing
  for 50 seconds. A client that sends slowly takes no thread.
- Transfer-Encoding and Content-Length in one request are refused (400).
- JSON nested deeper than Python's recursion limit, which crashes a model server
  (tensorflow/serving 4116), is refused; so is invalid UTF-8. An array has at
  most 64 axes. A decimal number of more than 15 digits is rounded to the
  nearest double; the model server sometimes rounds to a neighbor.
- Error texts for invalid HTTP are waitress's, not libevent's. Over REST, the
  error of a version number over 64 bits has a text.
"""

BINARY = "tensorflow_model_server"
IDENT = f"keras_fixedhead stand-in for {BINARY}"
EVERY_INTERFACE = "0.0.0.0"
