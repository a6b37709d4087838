"""What training minimises."""

from dmvi.objectives._covering import CoveringELBO as CoveringELBO
from dmvi.objectives._objective import ELBO as ELBO
from dmvi.objectives._objective import Objective as Objective
from dmvi.objectives._objective import PathELBO as PathELBO
from dmvi.objectives._objective import Value as Value
from dmvi.objectives._paper import Paper as Paper
from dmvi.objectives._weights import ROUND_TRIPS as ROUND_TRIPS
from dmvi.objectives._weights import Weighed as Weighed
from dmvi.objectives._weights import chunk_keys as chunk_keys
from dmvi.objectives._weights import chunk_size as chunk_size
from dmvi.objectives._weights import evidence_chunk as evidence_chunk
from dmvi.objectives._weights import piece_size as piece_size
from dmvi.objectives._weights import round_trip_chunk as round_trip_chunk
from dmvi.objectives._weights import weigh_chunk as weigh_chunk
from dmvi.objectives._weights import weigh_keys as weigh_keys
from dmvi.objectives._weights import weigh_pieces as weigh_pieces
