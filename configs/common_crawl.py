"""A base-size Transformer on Common Crawl (C4), one window of a document per example; its mini.

    python train.py --config=configs/common_crawl.py --workdir=DIR       (c4/en prepared by TFDS)
    python train.py --config=configs/common_crawl.py:mini --workdir=DIR  (no download, 1-2 minutes)
    python sweep.py --config=configs/common_crawl.py --study=demo --outdir=DIR

From the paper: Transformer, batch size 1024, Nesterov momentum, constant learning rate, no
augmentation. From memory, not verified: the base size and the target, a cross-entropy of 3.9 nats
per token. Our choice, since the paper does not specify them: C4's English part for "Common Crawl",
windows of 256 tokens (each token of a document is predicted once, without context from earlier
windows; loss and metrics ignore the padding of the last window), 32,000 unigram pieces, learning
rate and momentum, a budget of 30 million windows, the search ranges, and the shuffle buffers.

Training uses 4% of C4, about 15 million documents and 30 million windows, so the budget is one
pass. Mapping examples to windows takes the length of every document in tokens. Lengths are counted
once and cached next to the data, 4 bytes per document, in about 26 core-minutes for 4% and 11
core-hours for all of C4. `--config.dataset.text=sentences` uses only the first window of each
document, which needs no counting.

For insertions, hardware, vocabulary, and searches see configs/lm1b.py. Full size has not been run.

The mini uses the docstrings of the standard library's modules as documents, windows of 64, 512
pieces, and 2 layers of 64. Its validation split has a unigram entropy of 5.0 nats. It reaches the
target of 4.0 after about half its budget.
"""

from configs import catalog, lm1b

FIELDS = lm1b.FIELDS | {
    "workload": "common_crawl",
    "dataset.text": "documents",
    "dataset.name": "c4/en",
    "dataset.sequence_length": 256,
    "dataset.train_split": "train[:4%]",
    "dataset.validation_split": "validation[:10%]",
    "dataset.test_split": "validation[10%:20%]",
}
MINI_FIELDS = lm1b.MINI_FIELDS | {
    "workload": "common_crawl",
    "dataset.text": "documents",
    "dataset.name": "python_docstrings",
    "target.value": 4.0,
}

# Searches, budgets, batch sizes, and buffers are those of lm1b.
MINI_NUMBERS = lm1b.MINI_NUMBERS
get_config, get_search_space, get_studies = catalog.workload(
    {"": FIELDS, "mini": MINI_FIELDS},
    {"": lm1b.SEARCH_SPACE, "mini": lm1b.MINI_SEARCH_SPACE},
    {"": lm1b.NUMBERS, "mini": MINI_NUMBERS},
)
