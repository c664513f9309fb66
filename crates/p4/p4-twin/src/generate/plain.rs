//! Parts of programs of which verdicts can often be kept.

use super::{FIRST, Generator};
use fastrand::Rng;
use p4_ir::{
    Algorithm, Calculation, CalculationId, CalculationInput, Checksum, FieldId, FieldType, HeaderType, Place,
};

/// Widths of the first header's fields, and which one is the checksum.
const FIELDS: [u16; 5] = [8, 8, 16, 16, 32];
const CHECKSUM: usize = 3;

pub(super) fn width(random: &mut Rng) -> u16 {
    if random.bool() {
        [8, 16, 32, 48][random.usize(..4)]
    } else {
        random.u16(1..=40)
    }
}

pub(super) fn first_header() -> HeaderType {
    let fields = FIELDS.iter().enumerate();
    HeaderType {
        name: "h0_t".into(),
        fields: fields
            .map(|(at, width)| FieldType {
                name: format!("f{at}"),
                width: *width,
                signed: false,
                variable: false,
            })
            .collect(),
    }
}

impl Generator {
    /// A field of the first header.
    fn first_field(&self, number: usize) -> FieldId {
        let first = self.program.headers[usize::from(FIRST)].first_field;
        FieldId(first.0 + number as u32)
    }

    /// The first header without its checksum.
    pub(super) fn plain_inputs(&self) -> Vec<CalculationInput> {
        let numbers = (0..FIELDS.len()).filter(|number| *number != CHECKSUM);
        numbers
            .map(|number| CalculationInput::Field(self.first_field(number)))
            .collect()
    }

    /// The first header's checksum, verified or not, updated or not.
    pub(super) fn plain_checksums(&mut self) {
        let calculation = self.program.calculations.len();
        self.program.calculations.push(Calculation {
            name: "sum".into(),
            algorithm: Algorithm::Csum16,
            inputs: self.plain_inputs(),
        });
        let Some(calculation) = CalculationId::at(calculation) else {
            return;
        };
        for verify in [true, false] {
            if self.chance(3) {
                continue;
            }
            let condition = self.chance(4).then(|| self.valid());
            self.program.checksums.push(Checksum {
                name: format!("checksum, {verify}"),
                calculation,
                target: Place::Field(self.first_field(CHECKSUM)),
                condition,
                verify,
                update: !verify,
            });
        }
    }
}
