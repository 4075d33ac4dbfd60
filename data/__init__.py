"""Where examples come from: data sets as random-access sources of raw records.

splits.py       start here: opens the splits that config.dataset names
sources.py      what a source is, and what is known of a data set; file_source.py of files
tfds.py         data sets that TFDS has prepared: cifar10, imagenet2012, ...
packaged.py     data sets that ship with packages: digits, mnist_5k, scenes.py, python_text.py
paths.py        own data, KIND:PATH, each kind in its file: folder.py, npz.py, text_files.py,
                huggingface.py; what they share is in path_data.py, buckets in storage.py
tokens.py       text as tokens, with a vocabulary.py
throttle.py     input made slow on purpose; host.py JAX functions of examples on the CPU
"""
