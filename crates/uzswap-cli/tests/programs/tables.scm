;;; Vectors, strings and hash tables of Guile, whose collector writes to what it marks; prints what
;;; they come to.
(define count (* 40000 (string->number (cadr (command-line)))))

(define (mix sum text)
  (let loop ((at 0) (sum sum))
    (if (>= at (string-length text))
        sum
        (loop (+ at 7)
              (modulo (+ (* sum 31) (char->integer (string-ref text at))) 4294967291)))))

(define (name i)
  (string-append "row " (number->string i) " of a table " (make-string 120 #\x)))

(define rows (make-vector count))
(define table (make-hash-table))
(do ((i 0 (+ i 1))) ((= i count))
  (vector-set! rows i (list i (name i) (make-vector 20 i)))
  (hash-set! table i (vector-ref rows i)))
(do ((turn 0 (+ turn 1))) ((= turn 3))
  (let ((sum 0))
    (do ((i 0 (+ i 1))) ((= i count))
      (let ((row (vector-ref rows i)))
        (set! sum (mix sum (cadr row)))
        (set! sum (+ sum (vector-ref (caddr row) turn)))
        (vector-set! (caddr row) turn turn)))
    (do ((i turn (+ i 5))) ((>= i count))
      (hash-remove! table i))
    (if (= turn 1) (gc))
    (format #t "~a ~a ~a\n" turn sum (hash-count (const #t) table))))
