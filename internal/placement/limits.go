package placement

// maxReview bounds an AdmissionReview, in bytes: it has one pod of at most 1.5 MiB, which is etcd's limit.
const maxReview = 4 << 20
