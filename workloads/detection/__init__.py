"""Object detection: decoding, augmentation, loss, and COCO metrics of an SSD."""
