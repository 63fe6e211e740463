package server

// apart calls f in a goroutine of its own and waits for it; a panic is an error. The
// stack of a goroutine grows to what its deepest call needs, and hardly shrinks: that
// of a stream, which mostly waits, stays small if what goes deep is elsewhere.
func apart(where string, f func() error) error {
	done := make(chan error, 1)
	go func() {
		var err error
		defer func() { done <- err }()
		defer recoverTo(&err, where)
		err = f()
	}()
	return <-done
}
