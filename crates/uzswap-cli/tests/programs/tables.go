// Maps, slices and a thousand goroutines of Go, linked with the C library; prints what they come
// to.
package main

// #include <stdlib.h>
import "C"

import (
	"crypto/sha256"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
)

type row struct {
	number int
	name   string
	list   []float64
}

func main() {
	scale, _ := strconv.Atoi(os.Args[1])
	count := 60000 * scale
	C.free(C.malloc(1))
	rows := make(map[string]*row)
	for i := 0; i < count; i++ {
		name := strings.Repeat(fmt.Sprintf("row %d of a table ", i), 20)
		rows[strconv.Itoa(i)] = &row{i, name, []float64{float64(i), float64(i) / 7}}
	}
	for turn := 0; turn < 3; turn++ {
		const parts = 1000
		var sums [parts][32]byte
		var all sync.WaitGroup
		for part := 0; part < parts; part++ {
			all.Add(1)
			go func() {
				defer all.Done()
				hash := sha256.New()
				for i := part; i < count; i += parts {
					if row, ok := rows[strconv.Itoa(i)]; ok {
						row.list = append(row.list, float64(turn))
						fmt.Fprint(hash, row.number, row.name, row.list)
					}
				}
				copy(sums[part][:], hash.Sum(nil))
			}()
		}
		all.Wait()
		for i := turn; i < count; i += 7 {
			delete(rows, strconv.Itoa(i))
		}
		if turn == 1 {
			debug.FreeOSMemory()
		}
		hash := sha256.New()
		for _, sum := range sums {
			hash.Write(sum[:])
		}
		fmt.Printf("%d %d %x\n", turn, len(rows), hash.Sum(nil))
	}
}
