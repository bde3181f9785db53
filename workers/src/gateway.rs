//! The payment providers behind [`domain::gateway::PaymentGateway`], one file each.

pub mod fake;
