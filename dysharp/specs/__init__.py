"""`Model`, `Cluster` and the modelling choices of a simulation. See README.md in this folder."""

from dysharp.specs.catalog import list_clusters, list_models, load_cluster, load_model
from dysharp.specs.choices import Choice, Scalar, choice, choice_int, choice_str, choice_value, list_choices
from dysharp.specs.cluster import Cluster
from dysharp.specs.model import Model

__all__ = [
    "Choice",
    "Cluster",
    "Model",
    "Scalar",
    "choice",
    "choice_int",
    "choice_str",
    "choice_value",
    "list_choices",
    "list_clusters",
    "list_models",
    "load_cluster",
    "load_model",
]
