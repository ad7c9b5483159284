"""Makes fmnist_mini.npz: 600 training and 100 test images of each class of Fashion-MNIST, drawn with a fixed seed.

python -m feddual.data.make_fmnist_mini OUT.npz      (needs the full data set: feddual data status)
"""

import sys

import numpy as np

from feddual.data import datasets


def stratified(images: np.ndarray, labels: np.ndarray, per_class: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """`per_class` examples of each class, in random order."""
    rng = np.random.default_rng(seed)
    # Sorting by content first makes the choice independent of the order in which a file stores the images.
    order = np.lexsort([*images.reshape(len(images), -1).T[::29], labels])
    images, labels = images[order], labels[order]
    classes = [np.flatnonzero(labels == label) for label in range(10)]
    chosen = rng.permutation(np.concatenate([rng.choice(rows, per_class, replace=False) for rows in classes]))
    return images[chosen, ..., 0], labels[chosen].astype(np.uint8)


def main() -> None:
    """Write the file named on the command line."""
    full = datasets.fmnist()
    x_train, y_train = stratified(full.x_train, full.y_train, 600, seed=0)
    x_test, y_test = stratified(full.x_test, full.y_test, 100, seed=1)
    np.savez_compressed(sys.argv[1], x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)


if __name__ == "__main__":
    main()
