;;; Lists, structures and hash tables of SBCL, whose collector copies; prints what they come to.
(defstruct row number name list)

(defun mix (sum text)
  (declare (type string text) (type (unsigned-byte 32) sum) (optimize speed))
  (loop for at fixnum below (length text) by 7
        do (setf sum (logand (+ (* sum 31) (char-code (char text at))) #xffffffff)))
  sum)

(defun main (count)
  (let ((rows (make-array count)) (table (make-hash-table :test 'equal)))
    (dotimes (i count)
      (setf (aref rows i)
            (make-row :number i
                      :name (format nil "row ~d of a table ~a" i (make-string 100 :initial-element
                                                                             #\x))
                      :list (list i (/ i 7) (* i 3))))
      (setf (gethash (format nil "key ~d" i) table) (aref rows i)))
    (dotimes (turn 3)
      (let ((sum 0) (lists 0))
        (loop for row across rows
              do (setf sum (mix sum (row-name row)))
                 (push turn (row-list row))
                 (incf lists (length (row-list row))))
        (maphash (lambda (key row) (setf sum (logand (+ sum (mix 0 key) (row-number row))
                                                     #xffffffff)))
                 table)
        (loop for i from turn below count by 5 do (remhash (format nil "key ~d" i) table))
        (gc :full (= turn 1))
        (format t "~d ~d ~d ~d~%" turn sum lists (hash-table-count table))))))

(main (* 15000 (parse-integer (second *posix-argv*))))
