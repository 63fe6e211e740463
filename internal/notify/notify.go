// Package notify has what loops wait for: a channel that notifies of changes, and pauses; and it gathers events.
package notify

// Channel has a value if Notify was called since the last receive.
type Channel chan struct{}

// New returns a channel without a value.
func New() Channel { return make(Channel, 1) }

// Notify puts a value into the channel unless it has one. It never blocks.
func (c Channel) Notify() {
	select {
	case c <- struct{}{}:
	default:
	}
}
