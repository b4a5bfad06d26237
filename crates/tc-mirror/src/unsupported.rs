//! Why a filter has no counterpart in the switch.

use nic_switch::RuleError;

/// Why a filter of a kernel has no counterpart here: its frames are left to the kernel.
///
/// ```
/// use tc_mirror::Unsupported;
///
/// assert_eq!(Unsupported::Classifier("u32".into()).to_string(), "the classifier u32 is not flower");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unsupported {
    /// Another classifier than flower.
    #[error("the classifier {0} is not flower")]
    Classifier(String),
    /// `skip_hw`: it is to stay in software.
    #[error("it asks for software (skip_hw)")]
    SkipHardware,
    /// A key of flower that the switch does not look at, by its number (`TCA_FLOWER_*`).
    #[error("the switch does not look at flower's key {0}")]
    Key(u16),
    /// A mask that is no prefix, or leaves out a part of a field that is looked at as a whole.
    #[error("the mask of flower's key {0} is not one that the switch has")]
    Mask(u16),
    /// An action that the switch does not have, or an option of one.
    #[error("the action {0} is not one that the switch has, or has an option that it lacks")]
    Action(String),
    /// What follows an action is neither the next one nor the end.
    #[error("after the action {0} the kernel does something that the switch cannot")]
    Control(String),
    /// A device that is no port and no tunnel of the switch, by its number.
    #[error("the switch has no device {0}")]
    Device(u32),
    /// The switch has no such rule.
    #[error(transparent)]
    Rule(#[from] RuleError),
}
