//! A sound program that takes longer than any other: 200 tables in a chain, each of which adds 800 times.

use p4_ir::Checked;

/// Makes it of the chain of tables that do nothing, `malicious/table_chain`.
pub fn of_chain(chain: Checked) -> Checked {
    let mut program = chain.into_program();
    let adds = |action: &&p4_ir::Action| action.identity.name.ends_with("forward");
    // What comes behind the choice of the port.
    let step = program.actions.iter().find(adds).unwrap().ops[1].clone();
    for action in &mut program.actions {
        if action.identity.name == "NoAction" {
            action.ops = vec![step.clone(); 800];
        }
    }
    Checked::new(program).unwrap()
}
