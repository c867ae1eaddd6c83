//! The buckets of pins of a namespace: one, or one for each partition. How many there are, the namespace itself says.

use super::Link;
use super::bucket::{Bucket, Unreachable};
use crate::core::partition::{Partition, every};
use crate::wire::partitions;
use crate::wire::subject::Subjects;

/// Name of the bucket of a partition, of so many.
pub fn name(subjects: &Subjects, partition: Partition, count: u16) -> String {
    if count == 1 { subjects.pins_bucket() } else { subjects.pins_bucket_of(partition) }
}

/// All of so many buckets, in the order of their partitions.
pub fn all(link: &Link, subjects: &Subjects, count: u16) -> Vec<Bucket> {
    every(count).map(|partition| Bucket::new(link.clone(), &name(subjects, partition, count))).collect()
}

/// The buckets that there are: of the namespace itself is asked how many.
pub async fn find(link: &Link, subjects: &Subjects) -> Result<Vec<Bucket>, Unreachable> {
    let told = Bucket::new(link.clone(), &subjects.pins_bucket()).info().await?;
    match partitions::told(&told.description) {
        Some(count) => Ok(all(link, subjects, count)),
        None => Err(Unreachable(format!(
            "its description {:?} names a number of partitions that can't be",
            told.description
        ))),
    }
}
