//! Back-ends compared with each other, with other implementations and with vectors. All tests are one program, because one links faster than many.

mod aes;
mod common;
mod differential;
mod limits;
mod vectors;
