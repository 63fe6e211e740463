package pake

// Limits of secrets.
const (
	// MinSecret and MaxSecret is how many bytes a secret has, without a newline at its
	// end. 16 random bytes cannot be guessed.
	MinSecret = 16
	MaxSecret = 1024
)
