package relay

import (
	"net"
	"testing"
	"testing/synctest"
	"time"
)

func TestAConnectionEndsWhenNothingPassesEitherWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, a := net.Pipe()
		far, b := net.Pipe()
		done := make(chan struct{})
		go func() {
			pass(a, b)
			close(done)
		}()
		began := time.Now()
		// One direction alone keeps both.
		for range 3 {
			time.Sleep(idleTimeout - time.Second)
			go func() { _, _ = near.Write([]byte("x")) }()
			if _, err := far.Read(make([]byte, 1)); err != nil {
				t.Fatalf("after %s: %v", time.Since(began), err)
			}
		}
		last := time.Now()
		<-done
		if took := time.Since(last); took != idleTimeout {
			t.Fatalf("ended %s after the last byte", took)
		}
		if !ended(near) || !ended(far) {
			t.Fatal("an end is open")
		}
	})
}

func TestAReaderThatStopsEndsTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, a := net.Pipe()
		_, b := net.Pipe()
		done := make(chan struct{})
		go func() {
			pass(a, b)
			close(done)
		}()
		if _, err := near.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		<-done
		if took := time.Since(began); took > 2*idleTimeout {
			t.Fatalf("ended after %s", took)
		}
	})
}
