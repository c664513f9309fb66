//! The loader: the parts read so far, and the order in which the others are read.

use crate::error::{LoadError, Members, Read, Within, unsupported, wrong};
use crate::json::Json;
use crate::names::Names;
use p4_ir::{
    ActionId, Architecture, CalculationId, CounterId, DigestId, Expr, ExprId, FieldListId, HeaderId,
    HeaderTypeId, MeterId, Parameter, ProfileId, Program, RegisterId, StackId, StateId, TableId, UnionId,
    UnionStackId, UnionTypeId, ValueSetId,
};
use std::collections::HashMap;

/// State of reading one program.
pub(crate) struct Loader<'a> {
    pub program: Program,
    pub header_types: Names<String, HeaderTypeId>,
    /// Positions of fields in types.
    pub members: HashMap<(HeaderTypeId, String), u16>,
    /// Expressions for the length of variable fields (P4_14).
    pub lengths: HashMap<HeaderTypeId, &'a Json>,
    pub union_types: Names<String, UnionTypeId>,
    pub header_names: Names<String, HeaderId>,
    pub stack_names: Names<String, StackId>,
    pub union_names: Names<String, UnionId>,
    pub union_stack_names: Names<String, UnionStackId>,
    pub states: Names<String, StateId>,
    pub value_sets: Names<String, ValueSetId>,
    pub calculations: Names<String, CalculationId>,
    pub counters: Names<String, CounterId>,
    pub meters: Names<String, MeterId>,
    pub registers: Names<String, RegisterId>,
    pub digests: Names<u64, DigestId>,
    pub field_lists: Names<u64, FieldListId>,
    /// By number; names are not unique.
    pub actions: Names<i64, ActionId>,
    pub profiles: Names<String, ProfileId>,
    pub tables: Names<String, TableId>,
    /// The direct meters and counters of tables, by the names of the tables.
    pub direct: HashMap<String, (Option<CounterId>, Option<MeterId>)>,
    /// Where the colours of direct meters go.
    pub colours: HashMap<MeterId, &'a Json>,
    /// Nodes that exist, so that each is there once.
    pub known: HashMap<Expr, ExprId>,
    pub constants: HashMap<p4_ir::Bits, p4_ir::ConstantId>,
    /// Parameters of the action that is being read.
    pub parameters: Vec<Parameter>,
    /// The type whose length is being read: its fields are still ahead.
    pub ahead: Option<HeaderTypeId>,
    /// Levels of the expression that is being read.
    pub depth: usize,
}

/// Reads a program.
pub(crate) fn load(root: &Json) -> Result<Program, LoadError> {
    version(root)?;
    let mut loader = Loader::new(root)?;
    loader.headers(root)?;
    loader.standard_metadata(root)?;
    for error in root.list("errors")? {
        match error.elements() {
            Some([Json::Text(name), Json::Number(number)]) if u32::try_from(*number).is_ok() => {
                loader.program.errors.push((name.clone(), *number as u32));
            }
            _ => wrong("an error is no pair of name and number").within(|| "errors".to_owned())?,
        }
    }
    loader.field_lists(root)?;
    loader.externs(root)?;
    loader.actions(root)?;
    loader.parser(root)?;
    loader.pipelines(root)?;
    loader.deparser(root)?;
    loader.checksums(root)?;
    Ok(loader.program)
}

/// Is it of a version that we know? BMv2's document calls minor versions compatible; what they added is read
/// where it is there. Files without a version are from before 2.0 and are tried.
fn version(root: &Json) -> Read<()> {
    if !matches!(root, Json::Object(_)) {
        return wrong("the text is no JSON object").within(|| "program".to_owned());
    }
    let version = root.get("__meta__").get("version");
    if version.is_null() {
        return Ok(());
    }
    let parts = version
        .elements()
        .unwrap_or_default()
        .iter()
        .map(Json::number)
        .collect::<Vec<_>>();
    match parts[..] {
        [Some(2), Some(0..)] => Ok(()),
        [Some(major), Some(minor)] => unsupported(format!("version {major}.{minor} of BMv2's JSON")),
        _ => wrong("no pair of numbers"),
    }
    .within(|| "__meta__, version".to_owned())
}

/// The architecture of a program that is not for v1model. The JSON does not name the architecture, but
/// BMv2's targets do fix the names of parsers and pipelines, and the compiler the names of the
/// architecture's metadata.
fn other_architecture(root: &Json) -> Option<&'static str> {
    let names = |kind: &str| {
        let elements = root.get(kind).elements().unwrap_or_default();
        elements.iter().filter_map(|element| element.get("name").text())
    };
    let parts = || {
        names("parsers")
            .chain(names("pipelines"))
            .chain(names("deparsers"))
    };
    let metadata = |start: &str| names("headers").any(|name| name.starts_with(start));
    if parts().any(|name| name.starts_with("main_")) || metadata("pna_main_") {
        return Some("PNA");
    }
    let two_parsers = parts().any(|name| matches!(name, "ingress_parser" | "egress_parser"));
    (two_parsers || metadata("psa_ingress_") || metadata("psa_egress_")).then_some("PSA")
}

impl<'a> Loader<'a> {
    fn new(root: &Json) -> Read<Self> {
        let path = root.get("program").text().unwrap_or("unnamed");
        let name = path.rsplit('/').next().unwrap_or(path);
        let name = name.chars().take(256).collect::<String>();
        if let Some(architecture) = other_architecture(root) {
            return unsupported(format!("architecture {architecture}")).within(|| "program".to_owned());
        }
        for pipeline in root.list("pipelines")? {
            let name = pipeline.string("name").within(|| "pipelines".to_owned())?;
            if !matches!(name, "ingress" | "egress") {
                return unsupported(format!("pipeline {name:?}: an architecture other than v1model"))
                    .within(|| "pipelines".to_owned());
            }
        }
        Ok(Self {
            program: Program::empty(name, Architecture::V1Model),
            header_types: Names::new("header type"),
            members: HashMap::new(),
            lengths: HashMap::new(),
            union_types: Names::new("header union type"),
            header_names: Names::new("header"),
            stack_names: Names::new("header stack"),
            union_names: Names::new("header union"),
            union_stack_names: Names::new("header union stack"),
            states: Names::new("parser state"),
            value_sets: Names::new("value set"),
            calculations: Names::new("calculation"),
            counters: Names::new("counter array"),
            meters: Names::new("meter array"),
            registers: Names::new("register array"),
            digests: Names::new("learn list"),
            field_lists: Names::new("field list"),
            actions: Names::new("action"),
            profiles: Names::new("action profile"),
            tables: Names::new("table"),
            direct: HashMap::new(),
            colours: HashMap::new(),
            known: HashMap::new(),
            constants: HashMap::new(),
            parameters: Vec::new(),
            ahead: None,
            depth: 0,
        })
    }
}
