package notify

import (
	"sync"
	"time"
)

// Gather returns a function that calls call with each key that it gets, once after a pause, however often it gets
// the key meanwhile, and at most once in apart.
func Gather[K comparable](pause, apart time.Duration, call func(K)) func(K) {
	var mu sync.Mutex
	due := map[K]bool{} // false: it was called lately
	var after func(K, time.Duration)
	after = func(key K, wait time.Duration) {
		time.AfterFunc(wait, func() {
			mu.Lock()
			is := due[key]
			if due[key] = false; !is {
				delete(due, key)
			}
			mu.Unlock()
			if is {
				call(key)
				after(key, apart)
			}
		})
	}
	return func(key K) {
		mu.Lock()
		defer mu.Unlock()
		if _, waits := due[key]; !waits {
			after(key, pause)
		}
		due[key] = true
	}
}
