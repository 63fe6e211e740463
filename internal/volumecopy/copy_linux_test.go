package volumecopy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/entente-dev/entente/internal/waittest"
)

// planted makes a tree of all kinds of entries.
func planted(t testing.TB, root string, r *rand.Rand) {
	t.Helper()
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	at := func(parts ...string) string { return filepath.Join(append([]string{root}, parts...)...) }
	ok(os.Mkdir(at("dir"), 0o750))
	ok(os.Mkdir(at("dir", "empty"), 0o2775))
	ok(os.WriteFile(at("plain"), []byte("plain"), 0o640))
	ok(os.WriteFile(at("dir", "none"), nil, 0o444))
	ok(os.WriteFile(at("dir", "run"), []byte("#!"), 0o755))
	ok(unix.Chmod(at("dir", "run"), 0o4755))
	ok(os.WriteFile(at("dir", "odd\nname\xff"), []byte("odd"), 0o600))
	ok(os.Symlink("../plain", at("dir", "link")))
	ok(os.Symlink("/etc/passwd", at("absolute")))
	ok(os.Symlink("nowhere", at("dangling")))
	ok(os.Link(at("plain"), at("dir", "second")))
	ok(unix.Mkfifo(at("fifo"), 0o620))
	l, err := net.Listen("unix", at("socket"))
	ok(err)
	t.Cleanup(func() { _ = l.Close() })
	large := make([]byte, 300<<10)
	for i := range large {
		large[i] = byte(r.Uint32())
	}
	ok(os.WriteFile(at("large"), large, 0o600))
	sparse, err := os.Create(at("sparse"))
	ok(err)
	ok(sparse.Truncate(1 << 30))
	_, err = sparse.WriteAt(large[:70000], 5<<20)
	ok(err)
	_, err = sparse.WriteAt([]byte("end"), 1<<30-3)
	ok(err)
	ok(sparse.Close())
	ok(os.WriteFile(at("zeros"), make([]byte, 1<<20), 0o600))
	for i := range 50 {
		ok(os.WriteFile(at("dir", fmt.Sprintf("f%d", i)), large[:r.IntN(9000)], 0o600))
	}
	if err := unix.Setxattr(at("plain"), "user.note", []byte("a\x00b"), 0); err != nil && !errors.Is(err, unix.ENOTSUP) {
		t.Fatal(err)
	}
	if os.Getuid() == 0 {
		ok(os.Lchown(at("dangling"), 12, 34))
		ok(os.Chown(at("dir"), 1000, 2000))
		ok(os.Chown(at("large"), 3000000, 5))
	}
	old := unix.Timespec{Sec: 1_000_000_000, Nsec: 123456789}
	for _, name := range []string{"plain", "dangling", "dir", "."} {
		ok(unix.UtimesNanoAt(unix.AT_FDCWD, at(name), []unix.Timespec{old, old}, unix.AT_SYMLINK_NOFOLLOW))
	}
}

func summed(t testing.TB, root string) Sum {
	t.Helper()
	sum, err := digest(t.Context(), root, func(int64) {})
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

// pair is both sides of a copy, each of which can be begun and ended.
type pair struct {
	from, to, fromState, toState string
	secret                       []byte
	// address is the receiver's. The sender dials via, if that is set.
	address, via string
}

func newPair(t testing.TB) *pair {
	t.Helper()
	return &pair{
		from: t.TempDir(), to: t.TempDir(), fromState: t.TempDir(), toState: t.TempDir(),
		secret: []byte(strings.Repeat("s", minSecret)), address: quietAddress(t),
	}
}

// quietAddress is one that a receiver may leave and listen on again: below the ports that the
// kernel chooses for connections (ip_local_port_range), one of which, the sender's own
// included, would otherwise take it meanwhile.
func quietAddress(t testing.TB) string {
	t.Helper()
	for {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 20000+rand.IntN(10000)))
		if errors.Is(err, unix.EADDRINUSE) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		return l.Addr().String()
	}
}

func (p *pair) config(volume, state string) Config {
	return Config{Volume: volume, State: state, Secret: p.secret, ID: "1", Address: p.address, Log: func(string, ...any) {}}
}

// send and receive begin a side, whose previous status nobody reads any longer.
func (p *pair) send(t testing.TB) (end func() error) {
	t.Helper()
	forget(p.fromState)
	cfg := p.config(p.from, p.fromState)
	if p.via != "" {
		cfg.Address = p.via
	}
	return begin(t.Context(), Send, cfg)
}

func (p *pair) receive(t testing.TB) (end func() error) {
	t.Helper()
	forget(p.toState)
	return begin(t.Context(), Receive, p.config(p.to, p.toState))
}

func forget(state string) { _ = os.Remove(filepath.Join(state, statusFile)) }

// seal seals the side that has a state.
func seal(t testing.TB, state string) {
	t.Helper()
	if _, err := ReadStatus(state, true); err != nil {
		t.Fatal(err)
	}
}

// markers returns what identifies a copy on a volume.
func markers(t testing.TB, volume string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(volume, marker+"*"))
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// begin runs one side until the function that it returns is called, which returns its error.
func begin(ctx context.Context, side func(context.Context, Config) error, cfg Config) (end func() error) {
	ctx, cancel := context.WithCancel(ctx)
	var err error
	var running sync.WaitGroup
	running.Go(func() { err = side(ctx, cfg) })
	return func() error {
		cancel()
		running.Wait()
		return err
	}
}

// await waits until a side is in a phase.
func await(t testing.TB, state string, phase Phase) Status {
	t.Helper()
	var is Status
	var err error
	if !waittest.Soon(func() bool {
		is, err = ReadStatus(state, false)
		return err == nil && is.Phase == phase
	}) {
		t.Fatalf("it is %+v, %v; want %s", is, err, phase)
	}
	return is
}

func TestACopyIsEqual(t *testing.T) {
	p := newPair(t)
	planted(t, p.from, rand.New(rand.NewPCG(1, 2)))
	want := summed(t, p.from)
	receiver := begin(t.Context(), Receive, p.config(p.to, p.toState))
	sender := begin(t.Context(), Send, p.config(p.from, p.fromState))
	await(t, p.fromState, Copied)

	// Somebody changes it before it is sealed, and leaves things as long and as old as they were.
	for name, change := range map[string]func(string) error{
		"plain": func(at string) error { return os.WriteFile(at, []byte("PLAIN"), 0o640) },
		"large": os.Remove,
		"dir/x": func(at string) error { return os.Mkdir(at, 0o700) },
		"fifo": func(at string) error {
			return errors.Join(os.Remove(at), os.WriteFile(at, []byte("x"), 0o600))
		},
	} {
		if err := change(filepath.Join(p.from, name)); err != nil {
			t.Fatal(err)
		}
	}
	old := unix.Timespec{Sec: 1_000_000_000, Nsec: 123456789}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, filepath.Join(p.from, "plain"), []unix.Timespec{old, old}, 0); err != nil {
		t.Fatal(err)
	}
	if changed := summed(t, p.from); changed == want {
		t.Fatal("the digest does not see the change")
	} else {
		want = changed
	}
	if _, err := ReadStatus(p.fromState, true); err != nil {
		t.Fatal(err)
	}
	is := await(t, p.fromState, Verified)
	there := await(t, p.toState, Verified)
	if err := errors.Join(sender(), receiver()); err != nil {
		t.Fatal(err)
	}
	if got := summed(t, p.to); got != want || is.Sum != want || there.Sum != want {
		t.Errorf("the copy is %+v, the sides say %+v and %+v, want %+v", got, is.Sum, there.Sum, want)
	}
	if is.Pass != 4 { // one before, and three after: the third sends all
		t.Errorf("it was copied %d times", is.Pass)
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(p.to, "sparse"), &st); err != nil || st.Blocks*512 > 4<<20 {
		t.Errorf("the sparse file takes %d bytes, %v", st.Blocks*512, err)
	}
}

// identities returns the inodes of a volume, which change where a copy writes.
func identities(t testing.TB, root string) map[string]uint64 {
	t.Helper()
	all := map[string]uint64{}
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(path, &st)
		}
		all[path] = st.Ino
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// The command may have seen that both sides are Verified, or not, when one is lost: it is so again, and
// nothing was written.
func TestAVerifiedCopySurvivesTheLossOfEitherSide(t *testing.T) {
	p := newPair(t)
	planted(t, p.from, rand.New(rand.NewPCG(11, 12)))
	want := summed(t, p.from)
	receiver, sender := p.receive(t), p.send(t)
	await(t, p.fromState, Copied)
	seal(t, p.fromState)
	await(t, p.fromState, Verified)
	written := identities(t, p.to)
	again := func(lost string) {
		t.Helper()
		from, to := await(t, p.fromState, Verified), await(t, p.toState, Verified)
		if from.Sum != want || to.Sum != want {
			t.Errorf("%s was lost: the sides say %+v and %+v, want %+v", lost, from.Sum, to.Sum, want)
		}
		if diff := cmp.Diff(written, identities(t, p.to)); diff != "" {
			t.Errorf("%s was lost: what was verified was written (-before, +now):\n%s", lost, diff)
		}
	}
	again("nothing")

	if err := receiver(); err != nil {
		t.Fatal(err)
	}
	receiver = p.receive(t)
	again("the receiver")
	if err := sender(); err != nil {
		t.Fatal(err)
	}
	sender = p.send(t)
	again("the sender")
	if err := receiver(); err != nil {
		t.Fatal(err)
	}
	p.toState = t.TempDir() // it was another pod
	receiver = p.receive(t)
	again("the receiver's pod")
	if err := errors.Join(sender(), receiver()); err != nil {
		t.Fatal(err)
	}
}

// A sender that is lost before the move notes that both are equal gives the claim its old volume
// back, and pods write to that.
func TestAVerifiedCopyIsMadeAgainWhereTheSourceChanged(t *testing.T) {
	p := newPair(t)
	planted(t, p.from, rand.New(rand.NewPCG(13, 14)))
	receiver, sender := p.receive(t), p.send(t)
	await(t, p.fromState, Copied)
	seal(t, p.fromState)
	await(t, p.fromState, Verified)
	if err := sender(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(p.from, "more"), []byte("more"), 0o600); err != nil {
		t.Fatal(err)
	}
	want := summed(t, p.from)
	p.fromState = t.TempDir()
	sender = p.send(t)
	await(t, p.fromState, Copied)
	seal(t, p.fromState)
	from, to := await(t, p.fromState, Verified), await(t, p.toState, Verified)
	if err := errors.Join(sender(), receiver()); err != nil {
		t.Fatal(err)
	}
	if from.Sum != want || to.Sum != want || summed(t, p.to) != want {
		t.Errorf("the sides say %+v and %+v, want %+v", from.Sum, to.Sum, want)
	}
}

func TestASealedReceiverRemovesItsMarkerAndWritesNoMore(t *testing.T) {
	for name, plant := range map[string]func(at string){
		"a volume with data": func(at string) { planted(t, at, rand.New(rand.NewPCG(15, 16))) },
		"an empty volume":    func(string) {},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t)
			plant(p.from)
			want := summed(t, p.from)
			receiver, sender := p.receive(t), p.send(t)
			seal(t, p.fromState)
			await(t, p.fromState, Verified)
			await(t, p.toState, Verified)
			if len(markers(t, p.to)) != 1 {
				t.Errorf("before the move notes that both are equal, the markers are %q", markers(t, p.to))
			}
			seal(t, p.toState)
			await(t, p.toState, Finished)
			check := func() {
				t.Helper()
				if got := summed(t, p.to); got != want || len(markers(t, p.to)) > 0 {
					t.Errorf("the copy is %+v, want %+v; the markers are %q", got, want, markers(t, p.to))
				}
			}
			check()
			if err := receiver(); err != nil {
				t.Fatal(err)
			}
			receiver = p.receive(t)
			await(t, p.toState, Finished)
			time.Sleep(2 * redialFirst) // the sender connects again
			check()
			if err := errors.Join(sender(), receiver()); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// A kill between the removal of the marker and what follows it.
func TestAReceiverKilledWhileItRemovesItsMarkerRestoresTheRoot(t *testing.T) {
	volume, state := t.TempDir(), t.TempDir()
	planted(t, volume, rand.New(rand.NewPCG(17, 18)))
	want := summed(t, volume)
	root := func() time.Time {
		info, err := os.Stat(volume)
		if err != nil {
			t.Fatal(err)
		}
		return info.ModTime()
	}
	before := root()
	own := filepath.Join(volume, marker+"1")
	if err := errors.Join(os.Mkdir(own, 0o700), os.Chtimes(volume, time.Time{}, before)); err != nil {
		t.Fatal(err)
	}
	if err := rememberRoot(volume, state); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(own); err != nil {
		t.Fatal(err)
	}
	if root().Equal(before) {
		t.Fatal("the removal does not change the root")
	}
	if err := finish(volume, "1", state); err != nil {
		t.Fatal(err)
	}
	if got := summed(t, volume); got != want {
		t.Errorf("the volume is %+v, want %+v", got, want)
	}
}

// cutter carries connections of a sender to a receiver, and ends the one over which a number of
// bytes passed, both ways together.
type cutter struct {
	listener net.Listener
	to       string
	after    int64
	passed   atomic.Int64
	cut      chan struct{}
}

func newCutter(t testing.TB, to string, after int64) *cutter {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{listener: listener, to: to, after: after, cut: make(chan struct{})}
	var running sync.WaitGroup
	t.Cleanup(func() { _ = listener.Close(); running.Wait() })
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() { c.carry(conn) })
		}
	})
	return c
}

func (c *cutter) carry(near net.Conn) {
	defer near.Close()
	far, err := net.Dial("tcp", c.to)
	if err != nil {
		return
	}
	defer far.Close()
	var both sync.WaitGroup
	half := func(to, from net.Conn) {
		defer func() { _, _ = to.Close(), from.Close() }()
		buffer := make([]byte, 64)
		for {
			n, err := from.Read(buffer)
			if total := c.passed.Add(int64(n)); c.after > 0 && total >= c.after && total-int64(n) < c.after {
				_, _ = to.Write(buffer[:int64(n)-(total-c.after)])
				close(c.cut)
				return
			}
			if _, wrong := to.Write(buffer[:n]); err != nil || wrong != nil {
				return
			}
		}
	}
	both.Go(func() { half(far, near) })
	both.Go(func() { half(near, far) })
	both.Wait()
}

// moved plays the command until the receiver has finished: what it decides by is the two statuses.
func (p *pair) moved(t testing.TB, want Sum) {
	t.Helper()
	noted := false
	waittest.Eventually(t, "the volume is moved", func() bool {
		from, err := ReadStatus(p.fromState, false)
		to, err2 := ReadStatus(p.toState, false)
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		switch {
		case noted:
			seal(t, p.toState)
		case from.Phase == Copied:
			seal(t, p.fromState)
		case from.Phase == Verified && to.Phase == Verified:
			if noted = true; from.Sum != want || to.Sum != want {
				t.Fatalf("the sides say %+v and %+v, want %+v", from.Sum, to.Sum, want)
			}
		}
		return to.Phase == Finished
	})
	if got := summed(t, p.to); got != want || len(markers(t, p.to)) > 0 {
		t.Errorf("the copy is %+v, want %+v; the markers are %q", got, want, markers(t, p.to))
	}
}

// A side, or the connection alone, is lost after any byte of a copy.
func TestACopyThatIsCutAtAnyByteEndsTheSame(t *testing.T) {
	play := func(t *testing.T, after int64, lost int) (passed int64) {
		t.Helper()
		p := newPair(t)
		for i := range 4 {
			if err := os.WriteFile(filepath.Join(p.from, fmt.Sprint(i)), []byte(strings.Repeat("x", 700*i)), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want := summed(t, p.from)
		c := newCutter(t, p.address, after)
		p.via = c.listener.Addr().String()
		receiver, sender := p.receive(t), p.send(t)
		running := make(chan struct{})
		go func() {
			defer close(running)
			select {
			case <-c.cut:
			case <-t.Context().Done():
				return
			}
			switch lost {
			case 0:
				_ = receiver()
				receiver = p.receive(t)
			case 1:
				_ = sender()
				sender = p.send(t)
			}
		}()
		p.moved(t, want)
		passed = c.passed.Load()
		if after > 0 {
			<-running
		}
		if err := errors.Join(sender(), receiver()); err != nil {
			t.Fatal(err)
		}
		return passed
	}
	all := play(t, 0, 2)
	var at []int64
	for i := int64(1); i <= 12; i++ {
		at = append(at, all*i/13, all-i*120) // the digests, and what follows them
	}
	for i, after := range at {
		lost := i / 2 % 3
		t.Run(fmt.Sprintf("%s after %d of %d bytes", []string{"the receiver", "the sender", "the connection"}[lost], after, all), func(t *testing.T) {
			t.Parallel()
			play(t, after, lost)
		})
	}
}

// Either side ends at any moment, and begins again.
func TestACopyThatIsInterruptedGoesOn(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for round := range 6 {
		p := newPair(t)
		planted(t, p.from, r)
		want := summed(t, p.from)
		kills := 0
		receiver := begin(t.Context(), Receive, p.config(p.to, p.toState))
		sender := begin(t.Context(), Send, p.config(p.from, p.fromState))
		if _, err := ReadStatus(p.fromState, true); err != nil {
			t.Fatal(err)
		}
		for ; kills < 8; kills++ {
			time.Sleep(time.Duration(r.IntN(60)) * time.Millisecond)
			if r.IntN(2) == 0 {
				if err := sender(); err != nil {
					t.Fatal(err)
				}
				sender = begin(t.Context(), Send, p.config(p.from, p.fromState))
			} else {
				if err := receiver(); err != nil {
					t.Fatal(err)
				}
				receiver = begin(t.Context(), Receive, p.config(p.to, p.toState))
			}
		}
		// The current receiver may get no more requests: what it wrote counts.
		await(t, p.fromState, Verified)
		if err := errors.Join(sender(), receiver()); err != nil {
			t.Fatal(err)
		}
		if got := summed(t, p.to); got != want {
			t.Errorf("round %d: the copy is %+v, want %+v", round, got, want)
		}
	}
}

func TestAVolumeOfSomebodyElseIsNotWrittenTo(t *testing.T) {
	p := newPair(t)
	planted(t, p.from, rand.New(rand.NewPCG(5, 6)))
	if err := os.WriteFile(filepath.Join(p.to, "theirs"), []byte("theirs"), 0o600); err != nil {
		t.Fatal(err)
	}
	want := summed(t, p.to)
	receiver := begin(t.Context(), Receive, p.config(p.to, p.toState))
	if _, err := ReadStatus(p.fromState, true); err != nil {
		t.Fatal(err)
	}
	if err := Send(t.Context(), p.config(p.from, p.fromState)); !errors.Is(err, errDiffers) {
		t.Errorf("it ends with %v", err)
	}
	if err := receiver(); err != nil {
		t.Fatal(err)
	}
	if got := summed(t, p.to); got != want {
		t.Errorf("the volume is %+v, and was %+v", got, want)
	}
}

func TestASenderWithoutTheSecretIsRefused(t *testing.T) {
	p := newPair(t)
	receiver := begin(t.Context(), Receive, p.config(p.to, p.toState))
	await(t, p.toState, Waiting)
	cfg := p.config(p.from, p.fromState)
	cfg.Secret = []byte(strings.Repeat("x", minSecret))
	sender := begin(t.Context(), Send, cfg)
	waittest.Eventually(t, "the sender is refused", func() bool {
		is, err := ReadStatus(p.fromState, false)
		return err == nil && strings.Contains(is.Problem, "does not have the secret")
	})
	if err := errors.Join(sender(), receiver()); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(p.to); err != nil || len(entries) > 0 {
		t.Errorf("the volume has %v, %v", entries, err)
	}
	if _, err := secure(make([]byte, minSecret-1)); err == nil {
		t.Error("a short secret is taken")
	}
}

func TestADigestSeesEachKindOfChange(t *testing.T) {
	for name, change := range map[string]func(at string) error{
		"content":          func(at string) error { return os.WriteFile(filepath.Join(at, "zeros"), []byte("x"), 0o600) },
		"mode":             func(at string) error { return os.Chmod(filepath.Join(at, "dir/none"), 0o644) },
		"mode of the root": func(at string) error { return os.Chmod(at, 0o711) },
		"time":             func(at string) error { return os.Chtimes(filepath.Join(at, "dir"), time.Time{}, time.Unix(1e9, 1)) },
		"link": func(at string) error {
			return errors.Join(os.Remove(filepath.Join(at, "absolute")), os.Symlink("/etc", filepath.Join(at, "absolute")))
		},
		"name": func(at string) error { return os.Rename(filepath.Join(at, "zeros"), filepath.Join(at, "nulls")) },
		"a hard link less": func(at string) error {
			return errors.Join(os.Remove(filepath.Join(at, "dir/second")), os.WriteFile(filepath.Join(at, "dir/second"), []byte("plain"), 0o640))
		},
		"an attribute": func(at string) error { return unix.Setxattr(filepath.Join(at, "large"), "user.x", []byte("y"), 0) },
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			planted(t, root, rand.New(rand.NewPCG(7, 8)))
			before := summed(t, root)
			if err := change(root); errors.Is(err, unix.ENOTSUP) {
				t.Skip("this file system has no attributes")
			} else if err != nil {
				t.Fatal(err)
			}
			if summed(t, root) == before {
				t.Error("the digest is the same")
			}
		})
	}
	// What is stored in another way is the same.
	root := t.TempDir()
	write := func(sparse bool) Sum {
		f, err := os.Create(filepath.Join(root, "f"))
		if err != nil {
			t.Fatal(err)
		}
		if sparse {
			err = f.Truncate(1 << 20)
		} else {
			_, err = f.Write(make([]byte, 1<<20))
		}
		if err := errors.Join(err, f.Close(), os.Chtimes(f.Name(), time.Time{}, time.Unix(1e9, 0)), os.Chtimes(root, time.Time{}, time.Unix(1e9, 0))); err != nil {
			t.Fatal(err)
		}
		return summed(t, root)
	}
	if whole, sparse := write(false), write(true); whole.Digest != sparse.Digest {
		t.Errorf("zeros that are stored have digest %s, a hole %s", whole.Digest, sparse.Digest)
	}
}

func TestUncopyableEntriesAreReported(t *testing.T) {
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, marker+"old"), 0o700); err != nil {
		t.Fatal(err)
	}
	s := &sender{Config: Config{Volume: root}, report: &reporter{directory: t.TempDir()}}
	if err := s.archive(t.Context(), io.Discard, nil); err == nil || !strings.Contains(err.Error(), "is reserved") {
		t.Errorf("a volume that is being filled: %v", err)
	}
	if os.Getuid() != 0 {
		t.Skip("only root can make devices")
	}
	root = t.TempDir()
	if err := unix.Mknod(filepath.Join(root, "null"), unix.S_IFCHR, 0x103); err != nil {
		t.Skip(err)
	}
	s.Volume = root
	if err := s.archive(t.Context(), io.Discard, nil); err == nil || !strings.Contains(err.Error(), "is a device") {
		t.Errorf("a device: %v", err)
	}
}

// FuzzFill writes any archive of a hostile sender. Nothing outside of the volume changes, and the
// volume can be read and copied again.
func FuzzFill(f *testing.F) {
	seed := f.TempDir()
	planted(f, seed, rand.New(rand.NewPCG(9, 10)))
	if err := errors.Join(os.Remove(filepath.Join(seed, "sparse")), os.Remove(filepath.Join(seed, "large")), os.Remove(filepath.Join(seed, "zeros"))); err != nil {
		f.Fatal(err)
	}
	for i := range 50 {
		if err := os.Remove(filepath.Join(seed, fmt.Sprintf("dir/f%d", i))); err != nil {
			f.Fatal(err)
		}
	}
	var whole bytes.Buffer
	s := &sender{Config: Config{Volume: seed}, report: &reporter{directory: f.TempDir()}}
	if err := s.archive(f.Context(), &whole, nil); err != nil {
		f.Fatal(err)
	}
	f.Add(whole.Bytes())
	for _, bad := range hostile() {
		f.Add(bad)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		outside := t.TempDir()
		volume := filepath.Join(outside, "volume")
		if err := errors.Join(os.Mkdir(volume, 0o755), os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o600)); err != nil {
			t.Fatal(err)
		}
		d, finished, err := openDestination(volume, "1")
		if err != nil || finished {
			t.Fatal(finished, err)
		}
		defer d.root.Close()
		wrong := d.fill(t.Context(), bytes.NewReader(data), func(int64, int64) {})
		entries, err := os.ReadDir(outside)
		text, err2 := os.ReadFile(filepath.Join(outside, "secret"))
		info, err3 := os.Stat(filepath.Join(outside, "secret"))
		if err := errors.Join(err, err2, err3); err != nil || len(entries) != 2 || string(text) != "secret" || info.Mode() != 0o600 {
			t.Fatalf("beside the volume there is %v, %q, %v", entries, text, err)
		}
		if wrong != nil {
			return
		}
		if _, err := digest(t.Context(), volume, func(int64) {}); err != nil {
			t.Errorf("the written volume cannot be read: %v", err)
		}
	})
}

func TestEntriesOfAHostileSenderAreRefused(t *testing.T) {
	for name, data := range hostile() {
		t.Run(name, func(t *testing.T) {
			outside := t.TempDir()
			volume := filepath.Join(outside, "volume")
			if err := errors.Join(os.Mkdir(volume, 0o755), os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o600)); err != nil {
				t.Fatal(err)
			}
			d, _, err := openDestination(volume, "1")
			if err != nil {
				t.Fatal(err)
			}
			defer d.root.Close()
			if err := d.fill(t.Context(), bytes.NewReader(data), func(int64, int64) {}); err == nil {
				t.Error("it is taken")
			}
			if text, err := os.ReadFile(filepath.Join(outside, "secret")); err != nil || string(text) != "secret" {
				t.Errorf("beside the volume there is %q, %v", text, err)
			}
		})
	}
}
