package volumecopy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

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
	address                      string
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
	if names, err := filepath.Glob(filepath.Join(p.to, marker+"*")); err != nil || len(names) > 0 {
		t.Errorf("left: %q, %v", names, err)
	}

	// Once more, as after a kill between the end and its report.
	p.fromState, p.toState = t.TempDir(), t.TempDir()
	receiver = begin(t.Context(), Receive, p.config(p.to, p.toState))
	sender = begin(t.Context(), Send, p.config(p.from, p.fromState))
	if _, err := ReadStatus(p.fromState, true); err != nil {
		t.Fatal(err)
	}
	if again := await(t, p.fromState, Verified); again.Sum != want {
		t.Errorf("it is %+v, want %+v", again, want)
	}
	if err := errors.Join(sender(), receiver()); err != nil {
		t.Fatal(err)
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
