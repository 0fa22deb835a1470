"""A stand-in for `tensorflow_model_server`, where that is not installed.

It speaks the model server's gRPC and REST predict calls and runs the model
through the same C++ loader. States, status codes and error texts are those of
the TensorFlow Serving sources that each file names. `tests/contract` holds
them, and can ask a model server the same. What is different:

- It says in its log and in every answer that it is a stand-in, and listens on
  one address only, by default that of this machine alone.
- There are no Classify, Regress, MultiInference, SessionRun and
  HandleReloadConfigRequest (UNIMPLEMENTED), batching, metrics, request logging
  and TLS.
- A base path that is missing at start is an error at once; the model server
  waits for it, as both do for the first version in an empty one.
- A version that is tried again holds up no other, as in a model server with
  `--num_load_threads`. A retry waits for the next look for versions.
- A REST body has at most 1 GiB (413 after that), a header 256 KiB (431), and
  1000 REST clients are connected at once. The model server has no such limits;
  in both a client that sends nothing for 50 seconds is cut off, and one that
  sends a little at a time stays, without a thread.
- Texts for what is not HTTP, and where in a body JSON is broken, are those of
  waitress and of Python, not libevent's and RapidJSON's. JSON nested deeper
  than Python's recursion limit is refused; an array has at most 64 axes.
- An integer that its type cannot hold (300 for an int8) is refused over REST.
  The model server wraps it around. The error of a version number over 64 bits
  has a text over REST.
"""
