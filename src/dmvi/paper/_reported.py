"""Mean squared errors that the paper reports, from its appendix: what reproductions are held against."""

from typing import NamedTuple


class Reported(NamedTuple):
    """MSE of ADVI, of DMVI (least and largest of its eight configurations) and of NFVI."""

    advi: float
    dmvi_least: float
    dmvi_most: float
    nfvi: float


REPORTED: dict[tuple[str, int], Reported] = {
    ("mean", 100): Reported(0.11, 0.07, 0.07, 0.09),
    ("mean", 1000): Reported(0.06, 0.06, 0.06, 0.07),
    ("mixture", 100): Reported(8.49, 0.86, 0.90, 0.89),
    ("mixture", 1000): Reported(0.75, 0.77, 0.77, 0.85),
    ("hierarchical_1", 100): Reported(4.80, 0.19, 0.19, 0.23),
    ("hierarchical_1", 1000): Reported(0.78, 0.20, 0.20, 0.22),
    ("hierarchical_2", 100): Reported(5.91, 0.56, 0.57, 0.59),
    ("hierarchical_2", 1000): Reported(1.69, 0.56, 0.56, 0.58),
    ("hierarchical_3", 100): Reported(5.94, 0.59, 0.82, 0.39),
    ("hierarchical_3", 1000): Reported(3.74, 1.29, 1.48, 5.13),
    ("hierarchical_4", 100): Reported(12.47, 0.55, 0.64, 0.64),
    ("hierarchical_4", 1000): Reported(3.78, 1.09, 1.16, 4.23),
    ("hierarchical_5", 100): Reported(11.77, 0.39, 0.52, 0.62),
    ("hierarchical_5", 1000): Reported(2.54, 1.03, 3.47, 3.99),
}
