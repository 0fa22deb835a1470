"""A stand-in for `tensorflow_model_server`, where that is not installed.

It speaks the model server's gRPC and REST predict calls and runs the model
through the same C++ loader. Status codes and error texts are those of the
TensorFlow Serving sources that each file names.
"""
