//! Functions that this target has beyond v1model.

use p4_ir::ExternFunction;

/// Names of the functions. Each returns its only argument.
pub const FUNCTIONS: &[&str] = &["extern_func"];

/// Whether the target has a function of that name and form.
pub(crate) fn is_known(function: &ExternFunction) -> bool {
    FUNCTIONS.contains(&function.name.as_str()) && function.arguments.len() == 1
}
