"""The paper's values: Sahoo, Tripathi, Saha, Mondal, "FedDUAL: A Dual-Strategy with Adaptive Loss and Dynamic
Aggregation for Mitigating Data Heterogeneity in Federated Learning", TMLR 2025. "*" = did not converge there.
"""

Value = float | str  # a number, or "*"

# Table 1: top-1 test accuracy in percent, mean and standard deviation over three seeds; alpha = 0.01.
TABLE1: dict[str, dict[str, tuple[float, float] | str]] = {
    "fedavg": {"cifar10": (46.68, 0.25), "cifar100": (26.88, 0.18), "fmnist": (81.70, 0.20)},
    "fedprox": {"cifar10": (47.58, 0.30), "cifar100": (26.89, 0.22), "fmnist": (80.54, 0.28)},
    "fednova": {"cifar10": (48.44, 0.35), "cifar100": "*", "fmnist": "*"},
    "fedbn": {"cifar10": "*", "cifar100": (26.88, 0.19), "fmnist": (81.36, 0.23)},
    "feddyn": {"cifar10": (43.97, 0.40), "cifar100": (18.27, 0.32), "fmnist": (71.86, 0.45)},
    "moon": {"cifar10": (46.57, 0.28), "cifar100": (28.50, 0.25), "fmnist": (80.09, 0.27)},
    "scaffold": {"cifar10": "*", "cifar100": "*", "fmnist": "*"},
    "fedpvr": {"cifar10": (42.26, 0.42), "cifar100": (23.78, 0.31), "fmnist": (80.32, 0.33)},
    "feddual": {"cifar10": (48.70, 0.20), "cifar100": (29.15, 0.24), "fmnist": (81.99, 0.21)},
}

# Table 3: seconds of one client, and of the server, per round.
TABLE3: dict[str, dict[str, tuple[float, float]]] = {
    "fedavg": {"cifar10": (17.71, 0.44), "fmnist": (2.14, 0.05)},
    "feddual": {"cifar10": (27.49, 1.94), "fmnist": (2.62, 1.95)},
}

# Table 4: hours for 80 (CIFAR-10) and 180 (Fashion-MNIST) rounds.
TABLE4: dict[str, dict[str, Value]] = {
    "fedavg": {"cifar10": 2.66, "fmnist": 1.75},
    "fedprox": {"cifar10": 2.90, "fmnist": 1.90},
    "fednova": {"cifar10": 3.10, "fmnist": "*"},
    "fedbn": {"cifar10": "*", "fmnist": 1.80},
    "feddyn": {"cifar10": 4.89, "fmnist": 2.91},
    "moon": {"cifar10": 3.80, "fmnist": 2.40},
    "scaffold": {"cifar10": "*", "fmnist": "*"},
    "fedpvr": {"cifar10": 4.50, "fmnist": 2.90},
    "feddual": {"cifar10": 5.33, "fmnist": 3.01},
}

# Table 5: hours to an accuracy of 0.40 (CIFAR-10) and 0.70 (Fashion-MNIST).
TABLE5: dict[str, dict[str, Value]] = {
    "fedavg": {"cifar10": 0.76, "fmnist": 1.46},
    "fedprox": {"cifar10": 1.61, "fmnist": 1.90},
    "fednova": {"cifar10": 1.24, "fmnist": "*"},
    "fedbn": {"cifar10": "*", "fmnist": 1.80},
    "feddyn": {"cifar10": 4.89, "fmnist": 2.91},
    "moon": {"cifar10": 1.27, "fmnist": 1.47},
    "scaffold": {"cifar10": "*", "fmnist": "*"},
    "fedpvr": {"cifar10": 1.31, "fmnist": 1.21},
    "feddual": {"cifar10": 0.67, "fmnist": 1.02},
}

ROUNDS = {"cifar10": 80, "fmnist": 180}


def rounds_to_target(row: str, dataset: str) -> int | None:
    """Fig. 4's bars, which have no numbers in the paper: hours to the target over all hours, times all rounds."""
    total, reached = (table.get(row, {}).get(dataset) for table in (TABLE4, TABLE5))
    if isinstance(total, float) and isinstance(reached, float):
        return round(reached / total * ROUNDS[dataset])
    return None
