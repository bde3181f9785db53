//! The decisions that need no store, no provider and no clock: what follows from what is known. The flows ask here and
//! do the rest; the model of the simulation asks here too, so that it runs these very transitions and no copy.

pub mod payment;
pub mod reservation;
