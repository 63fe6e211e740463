package placement

import "time"

// maxReview bounds an AdmissionReview, in bytes: it has one pod of at most 1.5 MiB, which is etcd's limit.
const maxReview = 4 << 20

// describedPause is how long a virtual node has the same labels at least, whatever its provider offers: each change
// is a write and may move namespaces. An amendment changes them at once.
const describedPause = time.Minute
