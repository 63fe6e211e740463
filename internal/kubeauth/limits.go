package kubeauth

import "time"

// Limits of callers that the cluster's API server knows.
const (
	// MaxBearerToken is the longest bearer token that is reviewed, in bytes.
	MaxBearerToken = 32 << 10
	// ClientCARefresh is how often the cluster's client CA is read again.
	ClientCARefresh = time.Minute
	// ReviewTimeout is how long the API server may take to respond.
	ReviewTimeout = 10 * time.Second
	// MaxCached is how many reviews are cached, of each kind. A revocation takes effect when the
	// review expires: of a token and a permission after AllowTTL, of the lack of a permission
	// after DenyTTL.
	MaxCached = 4096
	AllowTTL  = time.Minute
	DenyTTL   = 10 * time.Second
	// maxReaders is for how many readers of metrics the API server is asked at once; any pod can
	// ask. Readers with a cached review do not count.
	maxReaders = 4
)
