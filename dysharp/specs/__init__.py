"""`Model`, `Cluster` and the modelling choices of a simulation. See README.md in this folder."""

from dysharp.specs.catalog import list_clusters, list_models, list_whole_models, load_cluster, load_model, load_whole
from dysharp.specs.choices import Choice, Scalar, choice, choice_int, choice_str, choice_value, list_choices
from dysharp.specs.cluster import PACKET_BYTES, Cluster, ScaleOut, file_values, session_bytes
from dysharp.specs.gpu import Gpu, list_gpus, load_gpu
from dysharp.specs.model import Model
from dysharp.specs.whole import Attention, WholeModel
