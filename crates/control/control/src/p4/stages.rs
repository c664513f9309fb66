//! P4 switches that become stages, have other places as stages, or are none any more.

use crate::control::Control;
use crate::refusal::Refusal;
use management::{P4StageConfig, Reply};

impl Control {
    /// Makes P4 switches stages, or ends that; all of it at once.
    ///
    /// # Errors
    /// There is no such P4 switch, it cannot be such a stage, a program is being loaded, or the change cannot
    /// be saved. Nothing has changed then.
    pub fn p4_stages(&mut self, set: Vec<(String, Option<P4StageConfig>)>) -> Result<Reply, Refusal> {
        self.no_trial()?;
        let mut intent = self.intent.clone();
        for (name, stage) in set {
            let own = intent.p4.get_mut(&name);
            own.ok_or(Refusal::NoP4(name))?.stage = stage;
        }
        self.adopt(intent)?;
        Ok(Reply::Done)
    }
}
