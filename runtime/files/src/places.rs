//! Positions in C order of elements that are stored in Fortran order (first axis fastest).

/// Iterator over the C-order positions of a Fortran-order tensor's elements.
pub struct Places {
    /// Size and C-order stride of each axis, fastest axis first.
    axes: Vec<[usize; 2]>,
    at: Vec<usize>,
    place: usize,
}

impl Places {
    /// Creates the iterator for a tensor of shape `shape`. The product of the sizes must not overflow.
    #[must_use]
    pub fn of(shape: &[usize]) -> Places {
        let stride = |axis: usize| shape[axis + 1..].iter().product();
        let axes = shape.iter().enumerate().map(|(axis, n)| [*n, stride(axis)]).collect();
        Places { axes, at: vec![0; shape.len()], place: 0 }
    }

    /// Returns the next position.
    pub fn next(&mut self) -> usize {
        let place = self.place;
        for ([n, stride], at) in self.axes.iter().zip(&mut self.at) {
            *at += 1;
            self.place += stride;
            if *at < *n {
                break;
            }
            self.place -= n * stride;
            *at = 0;
        }
        place
    }
}
