//! Writes GGUF files, version 3: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

/// Tensor data starts at multiples of this; the default of the format.
const ALIGNMENT: usize = 32;
const MAGIC: &[u8; 4] = b"GGUF";
const VERSION: u32 = 3;
/// Type number of tensors of 32-bit floats.
const F32: u32 = 0;

/// A metadata value. The format knows more types; these are the ones that a model of ours needs.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    U32(u32),
    F32(f32),
    Bool(bool),
    Text(String),
    Integers(Vec<i32>),
    Texts(Vec<String>),
}

/// A file in the making.
#[derive(Default)]
pub(super) struct Gguf {
    metadata: Vec<(String, Value)>,
    tensors: Vec<Tensor>,
}

/// A named array of floats.
struct Tensor {
    name: String,
    /// The dimension whose values lie next to each other comes first.
    shape: Vec<usize>,
    values: Vec<f32>,
}

impl Gguf {
    /// Adds a metadata entry.
    pub(super) fn entry(&mut self, key: &str, value: Value) -> &mut Self {
        self.metadata.push((key.to_owned(), value));
        self
    }

    /// Adds a matrix: `rows` rows of `columns` values, where `value` gives each by its row and column.
    pub(super) fn matrix(
        &mut self,
        name: &str,
        rows: usize,
        columns: usize,
        value: impl Fn(usize, usize) -> f32,
    ) -> &mut Self {
        let cells = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
        let values = cells.map(|(row, column)| value(row, column)).collect();
        self.tensor(name, vec![columns, rows], values)
    }

    /// Adds a vector whose values are all the same.
    pub(super) fn vector(&mut self, name: &str, length: usize, value: f32) -> &mut Self {
        self.tensor(name, vec![length], vec![value; length])
    }

    fn tensor(&mut self, name: &str, shape: Vec<usize>, values: Vec<f32>) -> &mut Self {
        self.tensors.push(Tensor {
            name: name.to_owned(),
            shape,
            values,
        });
        self
    }

    /// The bytes of the file.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(MAGIC);
        out.extend(VERSION.to_le_bytes());
        put_count(&mut out, self.tensors.len());
        put_count(&mut out, self.metadata.len());
        for (key, value) in &self.metadata {
            put_text(&mut out, key);
            put_value(&mut out, value);
        }
        let mut offset = 0;
        for tensor in &self.tensors {
            put_tensor_info(&mut out, tensor, offset);
            offset += size_of_val(tensor.values.as_slice()).next_multiple_of(ALIGNMENT);
        }
        pad(&mut out);
        for tensor in &self.tensors {
            out.extend(tensor.values.iter().flat_map(|value| value.to_le_bytes()));
            pad(&mut out);
        }
        out
    }
}

fn put_tensor_info(out: &mut Vec<u8>, tensor: &Tensor, offset: usize) {
    put_text(out, &tensor.name);
    // The count of dimensions has 32 bits, each dimension 64.
    out.extend(u32::try_from(tensor.shape.len()).unwrap_or(u32::MAX).to_le_bytes());
    for length in &tensor.shape {
        put_count(out, *length);
    }
    out.extend(F32.to_le_bytes());
    put_count(out, offset);
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    out.extend(type_of(value).to_le_bytes());
    match value {
        Value::U32(value) => out.extend(value.to_le_bytes()),
        Value::F32(value) => out.extend(value.to_le_bytes()),
        Value::Bool(value) => out.push(u8::from(*value)),
        Value::Text(value) => put_text(out, value),
        Value::Integers(values) => {
            put_array_head(out, INTEGER, values.len());
            out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        }
        Value::Texts(values) => {
            put_array_head(out, TEXT, values.len());
            for value in values {
                put_text(out, value);
            }
        }
    }
}

const INTEGER: u32 = 5;
const TEXT: u32 = 8;
const ARRAY: u32 = 9;

fn type_of(value: &Value) -> u32 {
    match value {
        Value::U32(_) => 4,
        Value::F32(_) => 6,
        Value::Bool(_) => 7,
        Value::Text(_) => TEXT,
        Value::Integers(_) | Value::Texts(_) => ARRAY,
    }
}

fn put_array_head(out: &mut Vec<u8>, element: u32, count: usize) {
    out.extend(element.to_le_bytes());
    put_count(out, count);
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_count(out, text.len());
    out.extend(text.as_bytes());
}

/// Counts, lengths and offsets have 64 bits.
fn put_count(out: &mut Vec<u8>, count: usize) {
    out.extend((count as u64).to_le_bytes());
}

fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Byte by byte as the format's description has it.
    #[test]
    fn a_small_file_has_the_documented_layout() {
        let mut file = Gguf::default();
        file.entry("n", Value::U32(7))
            .entry("words", Value::Texts(vec!["a".to_owned(), "bc".to_owned()]))
            .matrix("m", 2, 3, |row, column| {
                f32::from(u8::try_from(10 * row + column).unwrap())
            })
            .vector("v", 1, 0.5);
        let bytes = file.to_bytes();

        let mut expected = b"GGUF\x03\0\0\0".to_vec();
        let numbers = |bytes: &mut Vec<u8>, numbers: &[u64]| {
            bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        };
        numbers(&mut expected, &[2, 2, 1]);
        expected.extend(b"n\x04\0\0\0\x07\0\0\0");
        numbers(&mut expected, &[5]);
        expected.extend(b"words\x09\0\0\0\x08\0\0\0");
        numbers(&mut expected, &[2, 1]);
        expected.extend(b"a");
        numbers(&mut expected, &[2]);
        expected.extend(b"bc");
        // Name, two dimensions with the row's length first, type, offset.
        numbers(&mut expected, &[1]);
        expected.extend(b"m\x02\0\0\0");
        numbers(&mut expected, &[3, 2]);
        expected.extend(0u32.to_le_bytes());
        numbers(&mut expected, &[0, 1]);
        // 24 bytes of `m` take 32.
        expected.extend(b"v\x01\0\0\0");
        numbers(&mut expected, &[1]);
        expected.extend(0u32.to_le_bytes());
        numbers(&mut expected, &[32]);
        expected.resize(expected.len().next_multiple_of(32), 0);
        expected.extend(
            [0.0, 1.0, 2.0, 10.0, 11.0, 12.0f32]
                .iter()
                .flat_map(|v| v.to_le_bytes()),
        );
        expected.extend([0; 8]);
        expected.extend(0.5f32.to_le_bytes());
        expected.extend([0; 28]);
        assert_eq!(bytes, expected);
    }
}
