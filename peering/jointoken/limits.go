package jointoken

// Limits of what is read as a token.
const (
	// MaxLen is the most characters that an encoded token has.
	MaxLen = 4096
	// MaxIDLen is the most characters of a token's public part.
	MaxIDLen = 32
)
