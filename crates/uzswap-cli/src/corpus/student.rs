//! Student's t distribution, as far as intervals of 95 % need it.

/// Two-sided 95 % points (97.5 % of one side) by degrees of freedom, from 1 on.
const POINTS: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];

/// Half the width of a 95 % interval in standard errors, for `degrees` of freedom, at least 1.
/// Above 30 it is the normal distribution's 1.96.
pub(crate) fn reach(degrees: usize) -> f64 {
    POINTS.get(degrees - 1).copied().unwrap_or(1.96)
}
