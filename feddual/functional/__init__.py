"""A Keras model as a function of one weight vector: for training, evaluation, probes, surfaces and curvature alike.

`layout.py` says which slice of the vector is which tensor, `network.py` makes a model, or a part of one, take its
weights from there, `cut.py` takes models apart and copies them, `rewrites.py` computes the same sooner, `features.py`
keeps what frozen layers give. `_keras.py` is the only module that touches what Keras does not promise.
"""
