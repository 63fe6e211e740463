package tunnel

import (
	"fmt"
	"log/slog"
)

// hidden is printed instead of the private key.
const hidden = "[redacted]"

// privateKey is the device's private key. It leaves this package only for [Config.Keys].
type privateKey [32]byte

func (privateKey) Format(s fmt.State, _ rune)   { _, _ = s.Write([]byte(hidden)) }
func (privateKey) LogValue() slog.Value         { return slog.StringValue(hidden) }
func (privateKey) MarshalText() ([]byte, error) { return []byte(hidden), nil }
