//! Where elements in Fortran order, the first axis fastest, lie in C order.

/// The places in C order of the elements of a tensor in Fortran order, one after the other.
pub struct Places {
    /// Size and stride in C order of each axis, the first of which is the fastest.
    axes: Vec<[usize; 2]>,
    at: Vec<usize>,
    place: usize,
}

impl Places {
    /// Those of a tensor of shape `shape`, whose product fits.
    #[must_use]
    pub fn of(shape: &[usize]) -> Places {
        let stride = |axis: usize| shape[axis + 1..].iter().product();
        let axes = shape.iter().enumerate().map(|(axis, n)| [*n, stride(axis)]).collect();
        Places { axes, at: vec![0; shape.len()], place: 0 }
    }

    /// The next place.
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
