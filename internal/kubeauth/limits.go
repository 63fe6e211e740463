package kubeauth

import "time"

// Limits of callers that the cluster's API server knows.
const (
	// MaxBearerToken is the most bytes of a bearer token that are looked at.
	MaxBearerToken = 32 << 10
	// ClientCARefresh is how often the cluster's client CA is read again.
	ClientCARefresh = time.Minute
	// ReviewTimeout is how long the API server may take to answer.
	ReviewTimeout = 10 * time.Second
	// MaxAnswers is how many answers of the API server are kept, of each kind, where any
	// are. What is revoked counts until its answer expires: a token and a permission after
	// AllowTTL, the lack of a permission after DenyTTL.
	MaxAnswers = 4096
	AllowTTL   = time.Minute
	DenyTTL    = 10 * time.Second
	// maxReaders is for how many readers of metrics the API server is asked at once; any pod can
	// ask. Those for whom its answer is kept do not count.
	maxReaders = 4
)
